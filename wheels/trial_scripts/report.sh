# Two loaders under one workload, and a page that compares them.
pip install 'penstock[bench]'
penstock bench run unet3d_h100 ++workload.workflow.generate_data=True ++workload.dataset.num_files_train=8 ++workload.dataset.record_length_bytes=400000 ++workload.dataset.record_length_bytes_stdev=0 ++workload.dataset.record_length_bytes_resize=0 ++workload.reader.batch_size=2 ++workload.reader.read_threads=2 ++workload.train.epochs=2 ++workload.train.computation_time=0.02 ++workload.workflow.checkpoint=False --loader penstock --loader torch hydra.run.dir=results
ls results
