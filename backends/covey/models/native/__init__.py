"""Models of the plain families on a CPU, computed by loops that Numba compiles for it: without torch and without
transformers' modules, faster than their products at the few rows of decoding, and exact in any company.

    tiles       the innermost loop: a few rows times a panel of columns, in vector instructions
    matmul      a panel times all rows of a pass
    attention   queries of a lane over their keys
    stages      a pass, as stages of tasks
    chains      passes one after the other, each over the token that the last one drafted
    tasks       who does which
    weights, pool, model    what passes read, what they write, and who runs them

`architecture` says which models these are, `sizes` what memory they take; both and this file import no Numba, which
takes a quarter of a second.
"""

BLOCK = 32  # slots of a block
LANES = 16  # of a vector, in float32
KINDS = ("bfloat16", "float32")  # types that targets are computed in
SMALL = "int8"  # drafters' products: weights and activations in bytes
