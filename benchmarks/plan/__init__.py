"""How well `outsize plan` predicts what runs take."""
