"""What prism's launcher needs of PyTorch where programs have none: torchrun's command line and its store.

With this folder on PYTHONPATH, `prism capture -- torchrun --no-python PROGRAM` runs a C++ program on a machine without PyTorch, and starts ranks
without the second that importing PyTorch takes. What a Python program needs of torch is not here.
"""

__version__ = "0+torchless"
