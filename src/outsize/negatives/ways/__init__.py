"""How negatives are chosen: one file per `kind` of a run file, and the losses they share."""
