"""Who is where: ranks, coordinates, groups, stages. Pure arithmetic, standard library only."""
