"""User data -> rows -> tokens.

Two tiers. The light one, up to `samples.load_samples`, uses the standard library alone, so that
`plan` can check a data set before any rank starts. The heavy one (`tokenise`, `batching`, `cache`,
up to `prepare.prepare`) needs torch, transformers or pyarrow.
"""
