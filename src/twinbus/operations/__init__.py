"""What an operator asks and does: how full the backlog is, what lies dead in it, and sending that on after all."""
