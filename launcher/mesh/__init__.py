"""The mesh of ranks: coordinates, groups, stages. Pure arithmetic, standard library only."""
