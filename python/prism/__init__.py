"""What prism runs inside the user's own interpreter: the zygote, the observer, the shadowed launchers.

Nothing here is imported by user code, and nothing here is on its sys.path: the zygote loads these modules under the private
name `_prism` and takes its own folder off the path before the user's program starts.
"""
