"""Training jobs for the comparisons with real GPUs: programs of examples/ with their flags, each as large as fits twice on one H200."""

GPT = ("train_gpt.py", "--preset", "1b", "--dtype", "bf16", "--seq", "2048", "--recompute")
GPT_3B = (*GPT, "--hidden", "3072", "--layers", "28", "--heads", "24", "--head-size", "128")  # Llama 3.2 3B, untied
# Fewer layers of a width for which tensor parallelism is used.
GPT_8B_WIDE = ("train_gpt.py", "--preset", "8b", "--layers", "8", "--dtype", "bf16", "--seq", "2048", "--recompute")
GPT_70B_WIDE = ("train_gpt.py", "--preset", "70b", "--layers", "4", "--vocabulary", "32000", "--dtype", "bf16", "--seq", "2048", "--recompute")
MOE = ("train_moe.py", "--preset", "small", "--heads", "32", "--key-value-heads", "8", "--dtype", "bf16", "--seq", "2048")
JOBS = {
    "ddp": (*GPT, "--parallel", "ddp", "--micro-batch", "10"),
    "ddp-3b": (*GPT_3B, "--parallel", "ddp", "--micro-batch", "4"),
    "fsdp2": (*GPT, "--parallel", "fsdp2", "--micro-batch", "10"),
    "fsdp2-3b": (*GPT_3B, "--parallel", "fsdp2", "--micro-batch", "4"),
    "tensor": (*GPT_8B_WIDE, "--parallel", "tp", "--micro-batch", "12"),
    "tensor-wide": (*GPT_70B_WIDE, "--parallel", "tp", "--micro-batch", "8"),
    "pipeline": (*GPT, "--parallel", "pp", "--micro-batch", "5", "--pipeline-micro-batches", "4"),
    # Layers of Mixtral 8x7B and of 8x22B.
    "expert": (*MOE, "--hidden", "4096", "--feed-forward", "14336", "--experts", "8", "--top-k", "2", "--layers", "4", "--head-size", "128", "--micro-batch", "4"),
    "expert-wide": (*MOE, "--hidden", "6144", "--heads", "48", "--feed-forward", "16384", "--experts", "8", "--top-k", "2", "--layers", "2", "--head-size", "128", "--micro-batch", "6"),
    # Small kernels.
    "tensor-3b": (*GPT_3B, "--parallel", "tp", "--micro-batch", "12"),
    "expert-small": (*MOE, "--hidden", "2048", "--feed-forward", "2048", "--micro-batch", "8"),
    "ddp-small": (*GPT, "--parallel", "ddp", "--micro-batch", "2", "--layers", "8"),
    "fsdp2-small": (*GPT, "--parallel", "fsdp2", "--micro-batch", "2", "--layers", "8"),
    "tensor-small": (*GPT, "--parallel", "tp", "--micro-batch", "4", "--layers", "8"),
}
SMALL = ("tensor-3b", "expert-small", "ddp-small", "fsdp2-small", "tensor-small")
