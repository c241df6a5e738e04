"""The soak: hours of a server's life in minutes, and whether anything is left behind. ``scripts/soak`` runs it."""
