"""What people see of runs in notebooks: facts are gathered here, and `limpet.drawing` makes HTML of them."""
