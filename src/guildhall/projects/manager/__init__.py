"""The manager's part of the projects floor: its toolbox, and how work that is done is put up for review."""
