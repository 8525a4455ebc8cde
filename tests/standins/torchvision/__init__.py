"""The part of torchvision that README's script uses, by Pillow: for environments without it.

On the path of a script that a test runs, after all else: torchvision itself goes before.
"""

from . import datasets as datasets
from . import transforms as transforms
