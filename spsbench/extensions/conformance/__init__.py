"""What other engines' own tests take from here: test vectors of the rules, a pytest plug-in.

Torch is loaded by `vectors` alone. Read `vectors`.
"""
