"""Commands for a new installation: init, demo, doctor, completion."""
