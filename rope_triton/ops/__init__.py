"""Three dispatch paths, fastest first: eager autograd, operators, torch.func."""
