"""Other packages of this kind, as their users call them: each module has what one of them has."""
