"""What a model may use: functions, agents as tools, and persistent children."""
