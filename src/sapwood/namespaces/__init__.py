"""What an agent manages, by subject: `self.schedules`, `self.fibers`, `self.runs` and so on."""
