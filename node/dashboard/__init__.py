"""The dashboard at `/`: what this node knows of the mesh, shown to whoever may see it."""
