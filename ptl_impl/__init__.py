"""The training in Lightning: a LightningModule around pt_impl's network, its Trainer, its strategies."""
