"""The layout of a picture: where boxes, links and labels go on the page."""
