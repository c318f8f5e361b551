"""What helps to test code that uses Holdfast, and to certify a store of your own. Needs pytest."""
