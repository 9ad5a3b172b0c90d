"""From a cell to samples: GPU time, host time, memory, launches and error."""
