"""The table of orders, as `makemigrations` writes it."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    """Create the table."""

    initial = True

    dependencies: ClassVar = []

    operations: ClassVar = [
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("book", models.CharField(max_length=200)),
                (
                    "state",
                    models.CharField(
                        choices=[("open", "Open"), ("paid", "Paid"), ("cancelled", "Cancelled")],
                        default="open",
                        max_length=9,
                    ),
                ),
                ("created", models.DateTimeField(auto_now_add=True)),
            ],
            options={"ordering": ["pk"]},
        ),
    ]
