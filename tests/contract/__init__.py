"""What every join must do: all algorithms, kinds of master and join types, one against another."""
