"""Programs that write files of deploy/."""
