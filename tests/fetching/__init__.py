"""What kombu promises of consuming holds for messages that are fetched."""
