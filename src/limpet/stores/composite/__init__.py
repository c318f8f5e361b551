"""Stores around other stores: encryption, and a fast store in front of a durable one."""
