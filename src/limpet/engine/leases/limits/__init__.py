"""A limit in a store: what is stored, the rules, and how this process changes it. `../limit_slots.py` uses them."""
