"""evalrig: may a cheaper variant of a large language model be released?"""
