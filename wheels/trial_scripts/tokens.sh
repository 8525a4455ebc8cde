# From JSON lines to batches of tokens.
pip install 'penstock[cli,text]'
penstock tokenize documents.jsonl tokens --tokenizer tokenizer.json
python train.py
