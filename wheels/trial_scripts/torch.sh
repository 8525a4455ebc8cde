# A script for PyTorch, with one import changed.
pip install penstock
python train.py
sed -i 's/from torch.utils.data import DataLoader/from penstock.torch import DataLoader/' train.py
python train.py
