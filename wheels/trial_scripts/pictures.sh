# From a folder of pictures, a sub-folder for each class, to training on two ranks.
pip install 'penstock[images]'
OMP_NUM_THREADS=1 python -m torch.distributed.run --nproc-per-node 2 train.py
