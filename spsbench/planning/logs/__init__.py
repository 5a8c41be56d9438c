"""Plans from other people's logs: what speculation would have gained, with no model and no server.

It stands on the drafters by rule (`methods.drafters.ngram`) and on `planning.forecast`. Read
`formats`, `requests`, `rounds` (the law of a text's rounds), `prices`, `replay`, then `answer`.
"""
