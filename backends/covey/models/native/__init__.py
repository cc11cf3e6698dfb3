"""Models of the plain families on a CPU, computed by loops that Numba compiles for it. They use neither torch nor
transformers' modules, are faster than PyTorch's products at the few rows of decoding, and are exact in any pass.

    tiles       the innermost loop: a few rows times a panel of columns, in vector instructions
    matmul      a panel times all rows of a pass
    attention   queries of a lane over their keys
    stages      a pass, as stages of tasks
    chains      passes one after another, each over the token that the last one drafted
    contenders  the tokens that can win a draw
    tasks       how threads share the tasks
    weights, pool   what passes read, and what they write
    passes, model   the memory of passes and the loops' arguments; the interface

`architecture` decides which models these are, `sizes` how much memory they take. Both and this file import no Numba,
which takes a quarter of a second.
"""

BLOCK = 32  # slots of a block
LANES = 16  # float32 numbers of a vector
SMALL = "int8"  # weights and activations of products are bytes; all else is as in bfloat16
KINDS = ("bfloat16", "float32", SMALL)  # dtypes that models are computed in
