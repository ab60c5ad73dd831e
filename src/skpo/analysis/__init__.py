"""The paper's analyses (arXiv 2604.08690, section 4, appendices A and D), one file each and one for its pictures.

signs      how often Monte-Carlo advantage signs are right: exactly, and simulated
tokens     the same along real trajectories of a model
shortcut   what conditioning on a hard prefix does to sampling, against the skip connection
implicit   where along a correct response its advantage is made
"""
