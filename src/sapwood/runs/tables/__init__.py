"""What is stored of runs and of questions: the tables, and the values in them."""
