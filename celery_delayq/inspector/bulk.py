from typing import Literal

Action = Literal["cancel", "reschedule", "run_now"]
