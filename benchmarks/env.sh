# Source this before a benchmark, so that every program in a comparison runs alike:
#   . benchmarks/env.sh && python benchmarks/train_step.py
# torch's threads wait without spinning; large buffers are kept and used again instead of being returned to the
# system and faulted in anew at every step (worth 4 x to programs that make many temporaries).
export OMP_WAIT_POLICY=PASSIVE
export MALLOC_MMAP_THRESHOLD_=4294967296
export MALLOC_TRIM_THRESHOLD_=4294967296
export MALLOC_TOP_PAD_=134217728
