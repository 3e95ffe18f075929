"""The frozen base as bytes: laid out per layer, cut over ranks and tiers, fetched just in time."""
