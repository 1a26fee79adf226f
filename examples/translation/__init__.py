"""Translation word by word: sequence models whose requests share decoder steps."""
