"""Where boxes and the lines between them go on a page."""
