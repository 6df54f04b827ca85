"""The web page of a served environment: a form for actions, what came back, and the episode so far."""
