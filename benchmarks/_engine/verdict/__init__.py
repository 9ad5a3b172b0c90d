"""From samples to a verdict. Pure: measures nothing, prints nothing."""
