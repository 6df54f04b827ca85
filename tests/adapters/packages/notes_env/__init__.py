from .client import NotesEnv
from .models import NoteAction, NoteObservation

__all__ = ["NoteAction", "NoteObservation", "NotesEnv"]
