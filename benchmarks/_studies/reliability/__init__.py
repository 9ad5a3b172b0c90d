"""How reliable a comparison is: false alarms, planted slowdowns, mutants, simulations."""
