"""What both sides speak: messages, places, explanations. Pure; the daemon imports this, too."""
