"""HTTP without any dialect: operations, bodies, answers and streams, the checks before them, the records after."""
