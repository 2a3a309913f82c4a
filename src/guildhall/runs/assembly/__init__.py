"""Assembly: puts together what a run is made of before it starts. Executes nothing."""
