"""What hardware can do and what a pass must do: datasheets, ceilings, least work, predicted time, room on a card."""
