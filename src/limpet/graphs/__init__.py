"""How a graph is defined: state, schemas, predicates, nodes and edges, and the plan they freeze into."""
